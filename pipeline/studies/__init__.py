"""What is more than a training: quickstart, report, analyses, and the checks of faults and of a GPU."""
