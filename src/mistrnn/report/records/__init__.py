"""Records that verify themselves: the numbers that a document prints are computed again from recorded studies."""

from mistrnn.report.records.keep import keep_record
from mistrnn.report.records.verify import Verification, verify

__all__ = ["Verification", "keep_record", "verify"]
