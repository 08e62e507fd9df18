"""Building blocks of HTML pages: escaped markup, figures, pages of figures."""
