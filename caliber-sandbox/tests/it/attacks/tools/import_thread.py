"""Starts a thread while it is imported."""
import threading
import time

threading.Thread(target=lambda: time.sleep(600), daemon=True).start()


def answer(host):
    return {"result": "works"}
