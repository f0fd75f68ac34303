"""flows.yaml: what is right is read, what is wrong is named with its flow."""

from __future__ import annotations

import pytest

from confluo_tools.errors import UsageError
from confluo_tools.formats.pcap import packet_schema
from confluo_tools.stream.collector import differences
from confluo_tools.stream.flows_file import FlowsReader

SCHEMA = packet_schema(offset=False)
PLACE = "kafka://broker/telemetry"


def read(text: str, to: str = PLACE) -> list[object]:
    return list(FlowsReader(SCHEMA, to).text(text, "flows.yaml"))


def test_flows_say_what_they_need() -> None:
    text = """
flows:
- name: syn
  match: tcp_flags has syn
  to: kafka://broker/syns
  continue: true
- name: dns
  match: port 53
  fields: ts,len
  functions:
  - filter: src_ip == 10.0.0.1
  - passthrough
  - sample: {share: 1/4, by: flow}
  workers: 2
- name: rest
  worker: slow
"""
    syn, dns, rest = FlowsReader(SCHEMA, PLACE).text(text, "flows.yaml")
    assert (syn.to, dns.to, rest.to) == ("kafka://broker/syns", PLACE, PLACE)
    assert (syn.goes_on, dns.goes_on) == (True, False)
    assert (dns.workers, rest.worker, syn.workers, syn.worker) == (2, "slow", 0, "")
    assert dns.out == ("ts", "len")
    assert [f.name for f in dns.batch.fields] == ["ts", "len", "ip_version", "src_ip", "flow_hash"]
    assert syn.out == rest.out == tuple(f.name for f in syn.batch.fields)
    assert "tcp_seq" in syn.out
    assert "eth_src" not in syn.out


def test_a_change_is_told_by_flow() -> None:
    reader = FlowsReader(SCHEMA, PLACE)
    old = reader.text("flows: [{name: a, match: tcp}, {name: b}, {name: c}]")
    assert differences(old, reader.text("flows: [{name: a, match: tcp}, {name: b}, {name: c}]")) == []
    new = reader.text("flows: [{name: a, match: udp}, {name: d}, {name: c, functions: [sample: 1/2]}]")
    assert differences(old, new) == ["flow 'b': removed", "flow 'd': added", "flow 'a': changed", "flow 'c': changed"]
    turned = reader.text("flows: [{name: b}, {name: a, match: tcp}, {name: c}]")
    assert differences(old, turned) == ["the order of the flows: changed"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "flows.yaml: has no list 'flows'; write flows: and then - name: NAME for each"),
        ("flows: []", "flows.yaml: has no list 'flows'"),
        ("flows: {a: 1}", "flows.yaml: has no list 'flows'"),
        ("flows: [{name: a}]\nflwos: 1", "flows.yaml: unknown word 'flwos'; did you mean 'flows'?"),
        ("flows:\n- name: [", "flows.yaml:3: "),
        ("flows: [a]", "flows.yaml: flow 1: is not a mapping; write - name: NAME"),
        ("flows: [{name: a}, {match: tcp}]", "flows.yaml: flow 2: has no name; write name: NAME"),
        ("flows: [{name: a b}]", "flows.yaml: flow 1: 'a b' cannot be a name; use letters"),
        ("flows: [{name: 7}]", "flows.yaml: flow 1: '7' cannot be a name"),
        ("flows: [{name: a}, {name: a}]", "flows.yaml: two flows are named 'a'; rename one"),
        ("flows: [{name: a, matches: tcp}]", "flows.yaml: flow 'a': unknown word 'matches'; did you mean 'match'?"),
        ("flows: [{name: a, match: tpc}]", "flows.yaml: flow 'a': match: "),
        ("flows: [{name: a, match: 7}]", "flows.yaml: flow 'a': match: '7' is not an expression"),
        ("flows: [{name: a, continue: maybe}]", "flows.yaml: flow 'a': continue: 'maybe' is neither true nor false"),
        ("flows: [{name: a, workers: 0}]", "flows.yaml: flow 'a': workers: '0' is not from 1 to 64"),
        (
            "flows: [{name: a, workers: 2, to: x.messages}]",
            "flows.yaml: flow 'a': workers: only a topic or a table takes records from several workers",
        ),
        (
            "flows: [{name: a, workers: 2, functions: [{aggregate: {agg: first(len), every: 1s}}]}]",
            "flows.yaml: flow 'a': workers: aggregate: first, last and sums of floats depend on the order of records",
        ),
        (
            "flows: [{name: a, workers: 2, functions: [sample: {rate: 1/s}, aggregate: {agg: count, every: 1s}]}]",
            "flows.yaml: flow 'a': workers: aggregate needs all records of the flow in one thread; write workers: 1",
        ),
        ("flows: [{name: a, workers: true}]", "flows.yaml: flow 'a': workers: 'True' is not from 1 to 64"),
        ("flows: [{name: a, workers: 2, worker: w}]", "flows.yaml: flow 'a': worker and workers exclude each other"),
        ("flows: [{name: a, fields: lenn}]", "flows.yaml: flow 'a': fields: no field 'lenn'; did you mean 'len'?"),
        ("flows: [{name: a, to: 7}]", "flows.yaml: flow 'a': has no place for its records; write to: PLACE"),
        ("flows: [{name: a, functions: sample}]", "flows.yaml: flow 'a': functions: is not a list of at most 16"),
        ("flows: [{name: a, functions: [sample]}]", "flows.yaml: flow 'a': functions: 'sample' is not a function"),
        ("flows: [{name: a, functions: [{sampel: 1/2}]}]", "flows.yaml: flow 'a': unknown function 'sampel'; did you"),
        ("flows: [{name: a, functions: [{sample: 2}]}]", "flows.yaml: flow 'a': sample: '2' is not a share"),
        ("flows: [{name: a, functions: [{filter: x ==}]}]", "flows.yaml: flow 'a': filter: "),
        ("flows: [" + ",".join(f"{{name: f{i}}}" for i in range(65)) + "]", "flows.yaml: 65 flows exceed the limit"),
    ],
)
def test_what_is_wrong_is_named(text: str, complaint: str) -> None:
    with pytest.raises(UsageError) as e:
        read(text)
    assert str(e.value).startswith(complaint)
    assert "\n" not in str(e.value)


def test_a_flow_without_a_place_is_refused() -> None:
    with pytest.raises(UsageError, match="flow 'a': has no place for its records"):
        read("flows: [{name: a}]", to="")
