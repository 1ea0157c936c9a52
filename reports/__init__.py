"""Reports of records: rows in plain JSON types, failure texts, the summary on the terminal."""
