"""What is more than a training: report, analyses, and the checks of faults and of a GPU."""
