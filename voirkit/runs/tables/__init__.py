"""The tables of a run: spans as DuckDB reads them, from segments and from Parquet, and the compaction of one into the other."""
