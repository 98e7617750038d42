#!/usr/bin/env python3
"""Tests of what the pictures of the dashboards stand and fall with."""

import unittest

import draw_heatmap
import draw_series
import draw_values
import fields
import may_be_empty
import units
from variables import UnknownVariable, Variables


class Answers:
    """A Prometheus that knows some labels."""

    def label_values(self, query, _start, _end):
        return {"label_values(up, instance)": ["a", "b"], 'label_values(up{instance=~"b"}, pid)': ["7"]}.get(query, [])


def variables(chosen=None):
    def one(name, query):
        return {"type": "query", "name": name, "definition": query, "allValue": ".*", "current": {"value": ["$__all"]}}

    listed = [one("instance", "label_values(up, instance)"), one("pid", 'label_values(up{instance=~"$instance"}, pid)')]
    return Variables({"templating": {"list": listed}}, Answers(), 0, 600, chosen)


class Units(unittest.TestCase):
    def test_numbers_are_scaled_and_have_three_digits(self):
        for value, unit, wanted in [
            (0.0000123, "s", "12.3 µs"),
            (0, "s", "0 s"),
            (75, "s", "1.25 mins"),
            (1536, "bytes", "1.5 KiB"),
            (16384, "mbytes", "16 GiB"),
            (2_500_000, "Bps", "2.5 MB/s"),
            (0.1234, "percentunit", "12.3%"),
            (97, "percent", "97%"),
            (8633, "ops", "8.63K ops/s"),
            (40, "suffix:x", "40x"),
            (0, "short", "0"),
            (float("nan"), "s", ""),
            (None, "s", ""),
        ]:
            self.assertEqual(units.text(value, unit), wanted)

    def test_a_unit_that_cannot_be_drawn_is_refused(self):
        panel = {"fieldConfig": {"defaults": {"unit": "parsecs"}, "overrides": []}}
        self.assertRaises(fields.BadPanel, fields.settings, panel, "any")


class Settings(unittest.TestCase):
    def test_overrides_change_only_the_series_that_they_match(self):
        override = {
            "matcher": {"id": "byRegexp", "options": "/^b/"},
            "properties": [{"id": "custom.lineWidth", "value": 3}, {"id": "unit", "value": "s"}],
        }
        panel = {"fieldConfig": {"defaults": {"unit": "ops", "custom": {"lineWidth": 1}}, "overrides": [override]}}
        self.assertEqual(fields.settings(panel, "abc")["unit"], "ops")
        self.assertEqual(fields.settings(panel, "bcd"), {"unit": "s", "custom": {"lineWidth": 3}})

    def test_a_value_has_the_colour_of_the_highest_step_that_it_reaches(self):
        config = {"thresholds": {"steps": [{"value": None, "color": "green"}, {"value": 1, "color": "red"}]}}
        self.assertEqual([fields.threshold(config, value) for value in (0.5, 1, 9)], ["green", "red", "red"])

    def test_a_legend_names_labels_and_shows_a_missing_one_by_its_name(self):
        self.assertEqual(fields.legend("{{comm}} {{pid}}", {"comm": "trainer"}), "trainer pid")

    def test_a_legend_that_names_a_label_in_two_spellings_shows_the_one_that_is_there(self):
        self.assertEqual(fields.legend("on {{Hostname}}{{hostname}}", {"Hostname": "node-1"}), "on node-1")


class Filling(unittest.TestCase):
    def test_all_is_the_regular_expression_for_all_and_one_value_is_itself(self):
        self.assertEqual(variables().fill('up{instance=~"$instance"}'), 'up{instance=~".*"}')
        self.assertEqual(variables({"instance": ["b"]}).fill("${pid} $instance"), ".* b")

    def test_windows_cover_four_scrapes(self):
        self.assertEqual(variables().fill("[$__rate_interval] [$__range]", step=2, scrape=15), "[60s] [600s]")

    def test_a_variable_that_is_not_there_is_an_error(self):
        self.assertRaises(UnknownVariable, variables().fill, "$nothing")


class Data(unittest.TestCase):
    def test_buckets_hold_what_is_in_them_alone_in_the_order_of_their_bounds(self):
        series = [({"le": "+Inf"}, [9.0]), ({"le": "0.1"}, [2.0]), ({"le": "1"}, [7.0])]
        self.assertEqual(draw_heatmap.buckets(series), ([0.1, 1.0, float("inf")], [[2.0], [5.0], [2.0]]))

    def test_rows_are_joined_on_the_labels_that_they_share(self):
        frames = [("Value #A", [({"pid": "1"}, 5.0), ({"pid": "2"}, 6.0)]), ("Value #B", [({"pid": "2", "rank": "0"}, 7.0)])]
        self.assertEqual(
            draw_values.merged(frames),
            [{"pid": "1", "Value #A": 5.0}, {"pid": "2", "Value #A": 6.0, "rank": "0", "Value #B": 7.0}],
        )

    def test_stacked_series_begin_where_the_one_below_ends(self):
        class One:
            def __init__(self, values):
                self.values = values

        self.assertEqual(
            draw_series._stacked([One([1.0, None]), One([2.0, 3.0])]), [([0.0, 0.0], [1.0, 0.0]), ([1.0, 0.0], [3.0, 3.0])]
        )


class MayBeEmpty(unittest.TestCase):
    def test_only_what_a_page_lacks_at_its_level_and_in_its_format_may_be_empty(self):
        full, standard = 'rate(gpucause_context_switches_total{pid="1"}[1m])', "gpucause_launches_total"
        calls, launches = "gpucause_cuda_call_duration_seconds_bucket", "gpucause_launch_duration_seconds_bucket"
        for kind, expr, level, native, may in [
            ("timeseries", full, "standard", False, True),
            ("timeseries", full, "full", False, False),
            ("timeseries", full, "full", True, False),
            ("timeseries", standard, "standard", True, False),
            # It shows the mean.
            ("timeseries", calls, "standard", False, False),
            ("heatmap", calls, "standard", False, True),
            ("heatmap", calls, "full", False, False),
            ("heatmap", calls, "full", True, True),
            ("heatmap", launches, "standard", False, False),
        ]:
            reason = may_be_empty.reason(("uid", "title", "legend"), {"type": kind}, expr, level, native)
            self.assertEqual(bool(reason), may, (kind, expr, level, native, reason))


if __name__ == "__main__":
    unittest.main()
