"""What Prometheus reads: text in its exposition format, a file for its textfile collector, a map for dcgm-exporter."""
