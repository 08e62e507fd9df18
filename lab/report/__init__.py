"""The report: one self-contained HTML page from the run folders of one or several worlds."""
