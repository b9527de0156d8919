"""The words of every room: messages, chunks, requests, usage, errors, events, runs, plans. Imports nothing of ours."""
