"""Our own check for the API fuzzing run."""

import schemathesis


@schemathesis.check
def errors_say_why(ctx, response, case):
    """Every refusal is a problem document whose `reason_code` a program can act on."""
    # A HEAD answer has no body, and 405 and 404 of unknown routes are problems like any other.
    if response.status_code < 400 or case.method.upper() == "HEAD":
        return
    kind = response.headers.get("content-type", ["(none)"])[0].split(";")[0].strip()
    assert kind == "application/problem+json", f"{response.status_code} came as {kind}"
    problem = response.json()
    for field in ("status", "title", "reason_code"):
        assert problem.get(field), f"{response.status_code} without `{field}`: {problem}"
    assert problem["status"] == response.status_code, f"{response.status_code} claims to be {problem['status']}"
