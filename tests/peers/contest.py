"""The harness's side: a process for each engine, and turns. Whose turn it is not is stopped, threads and all."""

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.peers import engines
from tests.peers.engines import Peer

LINES_OF_LOG = 3
LLAMA = Path(__file__).with_name("llama.py")


class EngineFailed(Exception):
    """An engine's process ended before it should; the message has the end of its log."""


@dataclass
class Contestant:
    """An engine in its own process, and what it answered.

    Attributes:
        peer: which engine.
        setting: how it is configured.
        turns: an answer for each round: seconds, cpu_seconds, labels, logits or None.
        peak_mb: most memory held so far.
        failure: why it takes no part any more.
    """

    peer: Peer
    log: Path
    setting: str = ""
    turns: list[dict[str, Any]] = field(default_factory=list)
    peak_mb: float = 0.0
    failure: str | None = None
    process: subprocess.Popen[str] | None = None

    def start(self, model: Path, work: Path, folder: Path) -> None:
        """Build the engine and label the first deal, which does not count."""
        arguments = [self.peer.name, str(model), str(work), str(folder)]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                command("serve", *arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.setting = self._answer()["setting"]
        self._label(0)
        self.process.send_signal(signal.SIGSTOP)

    def take_turn(self, deal: int) -> float:
        """Label a deal; the seconds it took."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)
        turn = self._label(deal)
        self.process.send_signal(signal.SIGSTOP)
        self.turns.append(turn)
        return float(turn["seconds"])

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def _label(self, deal: int) -> dict[str, Any]:
        assert self.process is not None and self.process.stdin is not None
        try:
            print(deal, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            raise EngineFailed(end_of(self.log)) from None
        answer = self._answer()
        self.peak_mb = answer.pop("peak_mb")
        return answer

    def _answer(self) -> dict[str, Any]:
        assert self.process is not None and self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EngineFailed(end_of(self.log))
        answer: dict[str, Any] = json.loads(line)
        return answer


def command(step: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "tests.peers.worker", step, *arguments]


def run_contest(
    peers: Sequence[Peer], model: Path, work: Path, folder: Path, n_rounds: int, say: Callable[[str], None]
) -> list[Contestant]:
    """Convert, start, and let all take turns; an engine that fails is out, with its reason."""
    contestants = [Contestant(peer, folder / f"{peer.name}.log") for peer in peers]
    try:
        for contestant in contestants:
            say(f"{contestant.peer.name}: convert, load, warm up")
            _try(contestant, lambda it: it.start(model, work, converted(it.peer, model, work, folder, it.log)), say)
        for round_number in range(1, n_rounds + 1):
            # each time another one begins, so that nobody always follows the same one
            first = round_number % len(contestants)
            for contestant in (*contestants[first:], *contestants[:first]):
                if contestant.failure is None:
                    _try(contestant, lambda it, deal=round_number: it.take_turn(deal), say)
            say(f"round {round_number} of {n_rounds}")
    finally:
        for contestant in contestants:
            contestant.stop()
    return contestants


def _try(contestant: Contestant, do: Callable[[Contestant], Any], say: Callable[[str], None]) -> None:
    try:
        do(contestant)
    except EngineFailed as error:
        contestant.failure = str(error)
        contestant.stop()
        say(f"{contestant.peer.name}: failed: {error}")


def converted(peer: Peer, model: Path, work: Path, folder: Path, log: Path) -> Path:
    """The folder with an engine's model, made once for each model, question, version and source of the conversion."""
    module = Path(engines.__file__).with_name(f"{peer.module}.py")
    if "\ndef convert(" not in module.read_text():
        return folder
    question = json.loads(work.read_text())["question"]
    weights = [[str(file), file.stat().st_size, file.stat().st_mtime] for file in sorted(model.glob("*"))]
    identity = json.dumps([weights, question, peer.needs, module.read_text(), LLAMA.read_text()])
    target = folder / f"{peer.name}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
    if target.is_dir():
        return target
    making = folder / f"{peer.name}-making"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir()
    with log.open("a") as errors:
        done = subprocess.run(
            command("convert", peer.name, str(model), str(work), str(making)), stdout=errors, stderr=errors
        )
    if done.returncode:
        raise EngineFailed(end_of(log))
    making.rename(target)
    return target


def end_of(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-LINES_OF_LOG:])[-300:] or "no word of why"
