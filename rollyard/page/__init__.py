"""The dashboard's page: HTML, style and plain ES modules, as files that a browser loads. No build makes them."""
