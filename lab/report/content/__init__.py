"""The content of a report: one comparison reduced to tables, findings and sentences."""
