"""PURE: what is known as text for people and programs: tables, times, sentences, Prometheus' format."""
