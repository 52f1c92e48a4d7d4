"""Options of the commands that train."""
