"""Models of this project for other libraries, and theirs for this one."""
