"""What report.sh finds in folders of runs, section by section."""
