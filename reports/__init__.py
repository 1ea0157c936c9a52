"""What becomes of records: rows in plain JSON types, the text of a failure, the summary on the terminal."""
