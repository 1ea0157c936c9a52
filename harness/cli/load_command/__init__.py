"""`steelyard load`: command, options, view, search and output files."""
