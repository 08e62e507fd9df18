"""What all of the package uses: errors, files, settings, arms, columns, statistics."""
