"""Results of a load: answers, progress, figures, thresholds, and the search for the highest rate. Pure."""
