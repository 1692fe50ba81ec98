"""One request while it is being answered: what a mode gets into its hands."""

import threading
import time
import traceback

import rig_json
import rig_tools
from rig_core import LONGEST_SECONDS, POINTS, Cancelled, RpcError, plain


class Request:
    """One JSON-RPC request while it is being answered."""

    def __init__(self, rig, session, message, reply, era):
        self.rig = rig
        self.session = session
        self.message = message
        self.reply = reply
        self.era = era
        self.id = message.id
        self.method = message.method
        self.point = POINTS.get(message.method, "other")
        self.cancelled = threading.Event()
        self.close_recorded = False
        self.tool = rig_json.decode(rig_json.get(message.params, "name")) if self.point == "call" else None
        self.arguments = rig_json.get(message.params, "arguments") or "{}"
        self.progress_token = rig_json.get(message.params, "_meta", "progressToken")

    def run(self):
        """Answers the request: by a mode where one acts on it, else as a healthy server does."""
        with self.rig.lock:
            self.rig.in_flight.add(self)
        try:
            noise = self.rig.hook("noise", self)
            if noise:
                noise(self)
            answer = self.rig.hook("answer", self)
            if answer:
                answer(self)
            else:
                self.answer()
        except RpcError as error:
            self.fail(error.code, error.text, error.data, error.status)
        except Cancelled:
            self.reply.abandon()
        except OSError:
            self.record_close()
        except Exception:
            # A fault of the rig must not look like one of the client.
            traceback.print_exc()
            self.fail(-32603, "the rig itself has failed; see its stderr")
        finally:
            with self.rig.lock:
                self.rig.in_flight.discard(self)
            self.reply.close()

    def answer(self):
        """The healthy answer."""
        self.succeed(self.execute())

    def execute(self):
        """Does what is asked and returns the raw result; for tools/call this counts as an execution."""
        return rig_tools.healthy_result(self)

    def may_wait(self):
        """Whether its healthy answer can take time."""
        return self.point in ("listen", "discover") or self.tool in rig_tools.SLOW_TOOLS

    def envelope(self, result):
        """The answer message around a raw result; adds what the modern family requires."""
        if self.era == "modern" and result.startswith("{") and '"resultType"' not in result[:4096]:
            result = '{"resultType":"complete"' + ("}" if result == "{}" else "," + result[1:])
        return f'{{"jsonrpc":"2.0","id":{self.id},"result":{result}}}'

    def succeed(self, result):
        if self.point == "call":
            self.rig.records.add("answers", plain(self.tool), self.id)
        self.reply.finish(self.envelope(result))

    def fail(self, code, text, data=None, status=200):
        data = f',"data":{data}' if data else ""
        self.reply.refuse(status, f'{{"jsonrpc":"2.0","id":{self.id},"error":{{"code":{code},"message":{rig_json.quote(text)}{data}}}}}')

    def notify(self, method, params):
        """Sends a notification that belongs to this request; False once the client is gone."""
        try:
            self.reply.send(f'{{"jsonrpc":"2.0","method":{rig_json.quote(method)},"params":{params}}}')
            return True
        except OSError:
            self.record_close()
            return False

    def wait(self, seconds):
        """Waits; True as soon as the client gave up (cancelled, or went away)."""
        deadline = time.monotonic() + min(seconds, LONGEST_SECONDS)
        while True:
            if self.reply.closed():
                self.record_close()
                self.cancelled.set()
            if self.cancelled.is_set():
                return True
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            self.cancelled.wait(min(remaining, self.reply.poll_seconds))

    def stay(self, seconds):
        """Waits the whole time whatever the client says, but records that it went away."""
        deadline = time.monotonic() + min(seconds, LONGEST_SECONDS)
        while (remaining := deadline - time.monotonic()) > 0:
            if self.reply.closed():
                self.record_close()
            time.sleep(min(remaining, 0.05))

    def record_close(self):
        if not self.close_recorded:
            self.close_recorded = True
            self.rig.records.add("cancels", self.id, "stream_closed", "live")

    def pour(self, chunk, total, write=None):
        """Writes `total` bytes made of repeated `chunk`s, or as many as the client takes; records how many."""
        write = write or self.reply.write
        sent, complete = 0, True
        try:
            while sent < total:
                piece = chunk[: total - sent]
                write(piece)
                sent += len(piece)
        except OSError:
            complete = False
        self.rig.records.add("cutoffs", self.id, sent, "complete" if complete else "peer_closed")
        return complete
