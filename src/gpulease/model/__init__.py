"""PURE: the words of gpulease as values: devices, requests, leases, jobs, amounts; and which of them are meant."""
