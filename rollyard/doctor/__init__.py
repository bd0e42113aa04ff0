"""Probes of a site. Each probe tries a real action, and names a remedy if the action fails."""
