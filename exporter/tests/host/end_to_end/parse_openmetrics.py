"""Reads an OpenMetrics page from standard input and prints how many samples of each name it has, as JSON."""

import collections
import json
import sys

from prometheus_client.openmetrics.parser import text_fd_to_metric_families

counts = collections.Counter(
    sample.name for family in text_fd_to_metric_families(sys.stdin) for sample in family.samples
)
json.dump(counts, sys.stdout)
