"""The name and version of the installed distribution."""

from importlib.metadata import PackageNotFoundError, version

PROGRAM = "parquet-classify"


def installed_version() -> str:
    """The version, or ``unknown`` when the package runs from a folder without having been installed."""
    try:
        return version(PROGRAM)
    except PackageNotFoundError:
        return "unknown"
