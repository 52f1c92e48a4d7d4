"""A page of tables and pictures in one HTML file that loads nothing from elsewhere."""
