"""Bar: in a Clos of 52 namespaces the link that drops is first, in each kind of directed link.  Prints TSV.  Root only.

    .venv/bin/python bench/vote_live.py [--flows 2000] [--size 100000] [--pods 2 --tors 4 --t1s 4 --t2s 4 --hosts 4]
                                        [--only ToR-T1]

For each kind of link a load of real TCP and confluo-retx on each host meanwhile, then confluo-trace on each host and
confluo-vote over all of it (`examples/clos/proof.py`).  Columns: packets and drops that nftables counted on the link;
flows with loss by TCP_INFO (`lossy`), and how many of them the agents reported with the same number (`reported`); paths
`traced`, and how many of them are the way of the data (`same`); the link's rank by the models vote and mle; flows with
loss that the link dropped a packet of (`crossing`), and those for which confluo-vote blames that link (`blamed`);
seconds of load, traces and both votes, the starts of the commands among them.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from timing import ROOT, header, row

sys.path[:0] = [str(ROOT / "examples" / "clos"), str(ROOT / "examples" / "lab")]
import clos
import load
import net
import proof
import spaces

SIZES = {"pods": 2, "tors": 4, "t1s": 4, "t2s": 4, "hosts": 4}
SHARES = {
    "host-ToR": "1/101",
    "ToR-T1": "1/199",
    "T1-T2": "1/31",
    "T2-T1": "1/101",
    "T1-ToR": "1/101",
    "ToR-host": "1/101",
}


def link(plan: clos.Clos, kind: str) -> tuple[str, str]:
    """The last link of a kind: that is in the last pod."""
    level = {"host": clos.HOST, "ToR": clos.TOR, "T1": clos.T1, "T2": clos.T2}
    low, high = (level[word] for word in kind.split("-"))
    return [(a, b) for a, b in plan.directed() if (plan.nodes[a].level, plan.nodes[b].level) == (low, high)][-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flows", type=int, default=2000, help="of each kind of link; 9000 at most")
    parser.add_argument("--size", type=int, default=100_000, help="bytes of each")
    parser.add_argument("--only", choices=SHARES)
    for name, count in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=count)
    args = parser.parse_args()
    plan = clos.Clos(**{name: getattr(args, name) for name in SIZES})
    environment = {"PATH": f"{ROOT / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as top:
        file = Path(top) / "clos.yaml"
        begun = time.monotonic()
        state = spaces.up(plan, str(file), f"bench{os.getpid()}")
        try:
            file.write_text(clos.describe(plan))
            built = time.monotonic() - begun
            header(
                "kind",
                "link",
                "share",
                "packets",
                "dropped",
                "lossy",
                "reported",
                "traced",
                "same",
                "rank",
                "mle_rank",
                "crossing",
                "blamed",
                "load_s",
                "trace_s",
                "vote_s",
            )
            print(f"# {len(plan.nodes)} namespaces, {len(plan.links)} links, built in {built:.1f} s", flush=True)
            for number, (kind, share) in enumerate(SHARES.items()):
                if args.only not in (None, kind):
                    continue
                folder = Path(top) / kind
                folder.mkdir()
                flows = load.choose(plan, args.flows, args.size, number, first_port=10_000 + number * args.flows)
                it = proof.Proof(state, plan, folder, environment)
                r = it.prove(link(plan, kind), share, flows)
                row(
                    kind,
                    " ".join(r.link),
                    share,
                    r.packets,
                    r.dropped,
                    r.lossy,
                    r.reported,
                    r.traced,
                    r.same,
                    r.rank("vote"),
                    r.rank("mle"),
                    r.crossing,
                    r.blamed,
                    *map("{:.2f}".format, r.seconds.values()),
                )
        finally:
            net.down(state)


if __name__ == "__main__":
    main()
