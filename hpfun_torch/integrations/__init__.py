"""Plugs into models of other libraries; each imports its library itself."""
