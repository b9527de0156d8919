"""The words every room uses: messages, chunks, requests, usage, errors, events, runs, plans. Imports nothing of ours."""
