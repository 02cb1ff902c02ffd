"""Checks of Amazon's that moto lacks, for the proxy of bucket_server.py: clocks and keys."""

import datetime
import email.utils
import re

SKEW_MAX = datetime.timedelta(minutes=15)
KEY = re.compile(r"Credential=([^/]+)/")


class Rules:
    """A server whose clock is `ahead` of ours. `expired` is a set of keys that it refuses.

    `refused` has the code of each refusal. `on_refusal` is called with each code beforehand.
    """

    def __init__(self, ahead=datetime.timedelta()):
        self.ahead, self.expired, self.refused = ahead, set(), []
        self.on_refusal = lambda code: None

    def refusal(self, headers):
        code = self._problem(headers)
        if code is None:
            return None
        self.on_refusal(code)
        self.refused.append(code)
        return (400 if code == "ExpiredToken" else 403), code

    def date(self):
        return email.utils.format_datetime(self._now(), usegmt=True)

    def _now(self):
        return datetime.datetime.now(datetime.timezone.utc) + self.ahead

    def _problem(self, headers):
        signed = datetime.datetime.strptime(headers["x-amz-date"], "%Y%m%dT%H%M%SZ")
        if abs(signed.replace(tzinfo=datetime.timezone.utc) - self._now()) > SKEW_MAX:
            return "RequestTimeTooSkewed"
        key = KEY.search(headers["authorization"])
        assert key, headers["authorization"]
        return "ExpiredToken" if key[1] in self.expired else None
