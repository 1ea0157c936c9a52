"""One mock backend over HTTP: request handling, token streams, corrupted answers, attempt log."""
