"""Options of the commands that write the tables and pictures of results/."""
