"""The engine's process: started, watched, restarted, and the reason of its crashes."""
