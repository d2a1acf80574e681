"""Print the first rows of the labelled sample tickets and how often the label is the truth: for ``make run``."""

import sys

import polars as pl

COLUMNS = ("id", "subject", "label", "score", "truth")


def main() -> None:
    """Read the labelled file named on the command line."""
    tickets = pl.read_parquet(sys.argv[1], columns=list(COLUMNS))
    known = tickets.filter(pl.col("truth").is_not_null())
    n_right = len(known.filter(pl.col("label") == pl.col("truth")))
    with pl.Config(
        tbl_hide_dataframe_shape=True, tbl_hide_column_data_types=True, fmt_str_lengths=48, tbl_width_chars=120
    ):
        print(tickets.head(10))
    print(f"{n_right / len(known):.0%} of {len(known)} labels are the truth, a column that the model does not see")


if __name__ == "__main__":
    main()
