"""The page: who holds, who waits and why, live in a browser. It shows, and decides nothing. Needs `gpulease[web]`."""
