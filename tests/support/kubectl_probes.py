"""Commands of kubectl with what each must print, for one run in order on a server without other pools."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

POOL = """
apiVersion: rollyard.dev/v1alpha1
kind: RolloutPool
metadata: {name: NAME, labels: {team: TEAM}}
spec:
  replicas: 0
  inference: {policy: others}
  allocation: {nodelist: NODES}
"""
OTHERS = """
apiVersion: rollyard.dev/v1alpha1
kind: InferencePool
metadata: {name: others}
spec: {model: {path: /models/tiny}, engine: {external: {}}}
"""


def pool(name: str, team: str = "a", nodes: str = "[n1]", more: str = "") -> str:
    return POOL.replace("NAME", name).replace("TEAM", team).replace("NODES", nodes) + more


@dataclass(frozen=True)
class Probe:
    """One command. `says`: patterns that must be in the output, in any order; `not_says`: patterns that must not be."""

    words: str
    says: tuple[str, ...] = ()
    code: int = 0
    text: str = ""
    """Standard input."""
    not_says: tuple[str, ...] = ("Warning",)
    env: dict[str, str] = field(default_factory=dict)

    def problem(self, code: int, out: str) -> str:
        """Return what is wrong with the result; empty if nothing is."""
        wrong = [f"exit code {code}"] if code != self.code else []
        wrong += [f"no {word!r}" for word in self.says if not re.search(word, out)]
        wrong += [f"has {word!r}" for word in self.not_says if re.search(word, out)]
        return f"kubectl {self.words}: {', '.join(wrong)}: {out[-600:]}" if wrong else ""


def probe(
    words: str, *says: str, code: int = 0, text: str = "", not_says: tuple[str, ...] = ("Warning",), **env: str
) -> Probe:
    return Probe(words, says, code, text, not_says, env)


A = "rolloutpools/a"
PROBES: tuple[Probe, ...] = (
    # what the server is
    probe("version", r"Server Version: v1\.36", not_says=()),
    probe("version -o json", '"gitCommit"', '"goVersion"', '"buildDate"', not_says=()),
    probe("cluster-info", "is running at https://"),
    probe("api-versions", r"(?m)^rollyard.dev/v1alpha1$"),
    probe("api-resources", r"rolloutpools\s+rp\s+rollyard.dev/v1alpha1\s+true\s+RolloutPool"),
    probe("api-resources --api-group=rollyard.dev -o name", "allocations.rollyard.dev"),
    probe("api-resources --categories=rollyard -o name", "rolloutpools", not_says=("scale", "events")),
    probe("get --raw /readyz?verbose", r"\[\+\]store ok", "readyz check passed"),
    probe("get --raw /livez", "ok"),
    probe("get --raw /healthz", "ok"),
    # create and apply
    probe("create -f -", "inferencepool.rollyard.dev/others created", text=OTHERS),
    probe("create -f -", "AlreadyExists", code=1, text=OTHERS),
    probe("apply -f -", "rolloutpool.rollyard.dev/a created", text=pool("a", nodes="[n1]")),
    probe("apply -f -", "rolloutpool.rollyard.dev/a unchanged", text=pool("a", nodes="[n1]")),
    probe("diff -f -", code=0, text=pool("a", nodes="[n1]")),
    probe("diff -f -", r"\+.*n2", code=1, text=pool("a", nodes="[n2]")),
    probe(f"get {A} -o jsonpath={{.spec.allocation.nodelist}}", r'^\["n1"\]$'),
    probe("apply --dry-run=server -f -", "configured \\(server dry run\\)", text=pool("a", nodes="[n2]")),
    probe(f"get {A} -o jsonpath={{.spec.allocation.nodelist}}", r'^\["n1"\]$'),
    probe("apply --dry-run=client -f -", "created \\(dry run\\)", text=pool("x")),
    probe("apply -f -", "rolloutpool.rollyard.dev/a configured", text=pool("a", nodes="[]")),
    probe(f"get {A} -o jsonpath={{.spec.allocation.nodelist}}", r"^(\[\])?$"),
    probe("apply -f -", "spec.replcas: unknown field", code=1, text=pool("a") + "  replcas: 2\n"),
    probe(
        "apply --validate=warn -f -",
        'Warning: unknown field "spec.replcas"',
        text=pool("a") + "  replcas: 2\n",
        not_says=(),
    ),
    probe("apply --validate=ignore -f -", "a (configured|unchanged)", text=pool("a") + "  replcas: 2\n", not_says=()),
    probe(
        "create -f -",
        "spec.maxQueuedRollouts: must be a whole number",
        code=1,
        text=pool("bad") + "  maxQueuedRollouts: many\n",
    ),
    probe("apply --server-side -f -", "UnsupportedMediaType|not available", code=1, text=pool("a"), not_says=()),
    probe("create --validate=strict -f -", "rolloutpool.rollyard.dev/b created", text=pool("b", "b")),
    probe(
        "create -f -",
        r"rolloutpool.rollyard.dev/gen-\w{5} created",
        text=pool("x").replace("name: x", "generateName: gen-"),
    ),
    probe("create -n other -f -", "created", text=pool("c"), not_says=()),
    probe(
        "apply -n other -f -",
        "does not match the namespace",
        code=1,
        text=pool("c").replace("{name: c", "{namespace: default, name: c"),
        not_says=(),
    ),
    # read
    probe("get rp", r"(?m)^NAME +READY", r"(?m)^a "),
    probe("get rp a", r"(?m)^a +0/0"),
    probe("get rp,ip", r"rolloutpool.rollyard.dev/a", "inferencepool.rollyard.dev/others"),
    probe("get rp/a ip/others", "rolloutpool.rollyard.dev/a", "inferencepool.rollyard.dev/others"),
    probe("get rollyard", "rolloutpool.rollyard.dev/a"),
    probe("get all", "rolloutpool.rollyard.dev/a"),
    probe("get rp -A", r"NAMESPACE +NAME", "other +c"),
    probe("get rp -o wide", r"(?m)^a "),
    probe("get alloc -o wide", "No resources found in default namespace"),
    probe(f"get {A} -o yaml", "kind: RolloutPool", "uid:"),
    probe("get rp -o json", '"kind": "List"'),
    probe("get rp -o name", "rolloutpool.rollyard.dev/a"),
    probe(f"get {A} -o custom-columns=N:.metadata.name,R:.spec.replicas", r"a +0"),
    probe(f"get {A} -o go-template={{{{.metadata.name}}}}", "^a"),
    probe("get rp --sort-by=.metadata.name", r"(?s)a .*b "),
    probe("get rp -L team --show-labels", "team=a"),
    probe("get rp --chunk-size=1", r"(?m)^a ", r"(?m)^b ", r"(?m)^gen-"),
    probe("get rp --chunk-size=1 -o name", "rolloutpool.rollyard.dev/a", "rolloutpool.rollyard.dev/b"),
    probe("get rp --field-selector metadata.name=b", r"(?m)^b ", not_says=(r"(?m)^a ",)),
    probe("get rp --field-selector spec.nosuch=1", "field label not supported", code=1),
    probe("get rp -l team=b", r"(?m)^b ", not_says=(r"(?m)^a ",)),
    probe("get rp -l 'team in (a,b)'", r"(?m)^a ", r"(?m)^b "),
    probe("get rp -l 'team notin (a)'", r"(?m)^b ", not_says=(r"(?m)^a ",)),
    probe("get rp -l '!team'", "No resources found"),
    probe("get rp nosuch", "NotFound", code=1),
    probe("get rp nosuch --ignore-not-found"),
    probe("get rp a --subresource=status", r"(?m)^a "),
    probe("get rp a --subresource=scale -o jsonpath={.spec.replicas}", "^0$", not_says=()),
    probe("get rp a --output-watch-events --watch --request-timeout=2s", "ADDED", code=0, not_says=()),
    probe("get namespaces", r"default +Active", r"other +Active"),
    probe("get ns other -o jsonpath={.status.phase}", "^Active$"),
    probe("get ns nosuch", "NotFound", code=1),
    probe("get crd", "rolloutpools.rollyard.dev"),
    probe("get crd rolloutpools.rollyard.dev -o jsonpath={.spec.names.kind}", "^RolloutPool$"),
    probe("wait crd/rolloutpools.rollyard.dev --for=condition=Established --timeout=10s", "condition met"),
    probe("describe rp a", "Name: +a", "Kind: +RolloutPool"),
    probe("describe ns other", "Name: +other"),
    probe("describe crd rolloutpools.rollyard.dev", "Kind: +RolloutPool"),
    probe("wait rp/a --for=condition=Ready --timeout=30s", "condition met"),
    probe("wait rp/a --for=jsonpath={.spec.replicas}=0 --timeout=30s", "condition met"),
    probe("wait rp -l team=a --for=condition=Ready --timeout=30s", "rolloutpool.rollyard.dev/a condition met"),
    probe("wait rp/a --for=condition=Nonsense --timeout=1s", "timed out", code=1),
    probe("get events", r"LAST SEEN +TYPE +REASON +OBJECT +MESSAGE", "AllReady", not_says=()),
    probe("get events.events.k8s.io", "AllReady", not_says=()),
    probe("events", "AllReady", not_says=()),
    probe("events --for rolloutpool/a", "AllReady"),
    probe("events --types=Warning", not_says=("AllReady",)),
    probe("get events --field-selector involvedObject.name=a,type=Normal,reason=AllReady", "AllReady"),
    # explain
    probe("explain rolloutpools", "FIELDS", "spec", "RolloutPool"),
    probe("explain rp.spec.stages.run", "FIELDS"),
    probe("explain ip.spec.engine --recursive", "vllm"),
    probe("explain rp.spec.nosuch", "does not exist", code=1),
    probe("explain events", "involvedObject", not_says=()),
    probe("explain crd", "spec"),
    # change
    probe(f'patch {A} --type=merge -p {{"spec":{{"suspend":true}}}}', "patched"),
    probe(f'patch {A} --type=merge -p {{"spec":{{"suspend":true}}}}', "no change"),
    probe(f'patch {A} --type=json -p [{{"op":"replace","path":"/spec/suspend","value":false}}]', "patched"),
    probe(f'patch {A} --type=json -p [{{"op":"test","path":"/spec/suspend","value":true}}]', "another one", code=1),
    probe(f'patch {A} -p {{"spec":{{"suspend":true}}}}', "UnsupportedMediaType|415|not supported", code=1),
    probe(
        f'patch {A} --type=merge --subresource=status -p {{"status":{{"nextIndex":7}}}}',
        "Rollyard alone writes the status",
        code=1,
        not_says=(),
    ),
    probe(
        f'patch {A} --type=merge --subresource=scale -p {{"spec":{{"replicas":0}}}}', "patched|no change", not_says=()
    ),
    probe("scale rp a --replicas=0", "scaled"),
    probe("scale rp a --replicas=0 --current-replicas=0", "scaled"),
    probe("scale rp a --replicas=1 --current-replicas=5", "[Ee]xpected", code=1),
    probe("label rp a tier=gold", "labeled"),
    probe("label rp a tier=silver", "already has a value|overwrite", code=1),
    probe("label rp a tier=silver --overwrite", "labeled"),
    probe("label rp a tier-", "unlabeled"),
    probe("annotate rp a note=hello", "annotated"),
    probe("annotate rp a note-", "annotated"),
    probe("edit rp a", "edited", KUBE_EDITOR="sed -i 's/team: a/team: z/'"),
    probe(f"get {A} -o jsonpath={{.metadata.labels.team}}", "^z$"),
    probe("edit rp a", "Edit cancelled|no changes", KUBE_EDITOR="true"),
    probe("replace -f -", "replaced", text=pool("b", "q")),
    probe("get rp/b -o jsonpath={.metadata.labels.team}", "^q$"),
    probe("replace -f -", "Conflict", code=1, text=pool("b").replace("{name: b", "{resourceVersion: '1', name: b")),
    probe("replace -f -", "NotFound", code=1, text=pool("nosuch")),
    probe("replace --force -f -", "deleted", "replaced", text=pool("b", "r"), not_says=()),
    probe("set image rp/a x=y", code=1),
    probe("apply set-last-applied -f - --create-annotation=true", "configured", text=pool("b", "r")),
    probe("apply view-last-applied rp/b", "kind: RolloutPool"),
    # rights
    probe("auth can-i create rolloutpools", "yes"),
    probe("auth can-i delete rp/a", "yes"),
    probe("auth can-i create allocations.rollyard.dev", "no", code=1, not_says=()),
    probe("auth can-i get /healthz", "yes"),
    probe("auth can-i --list", "rolloutpools.rollyard.dev"),
    probe("auth whoami", "admin"),
    # finalizers and owners
    probe(
        f'patch {A} --type=merge -p {{"metadata":{{"finalizers":["example.com/hold"]}}}}',
        "patched",
        "stays until the pool's jobs",
        not_says=(),
    ),
    probe(f"delete {A} --wait=false", "deleted"),
    probe(f"get {A} -o jsonpath={{.metadata.deletionTimestamp}}", r"^20\d\d-"),
    probe(f"wait {A} --for=delete --timeout=2s", "timed out", code=1, not_says=()),
    probe(f'patch {A} --type=json -p [{{"op":"remove","path":"/metadata/finalizers"}}]', "patched", not_says=()),
    probe(f"wait {A} --for=delete --timeout=30s"),
    # delete
    probe("create -f -", "created", text=pool("d", "dd")),
    probe("delete rp d --cascade=orphan", "cannot outlive", code=1),
    probe("delete rp d --dry-run=server", r"deleted.*\(server dry run\)"),
    probe("delete rp d --dry-run=client", r"deleted.*\(dry run\)"),
    probe("get rp d -o name", "rolloutpool"),
    probe("delete rp d --cascade=foreground --timeout=30s", "deleted"),
    probe("delete rp d", "NotFound", code=1),
    probe("delete rp d --ignore-not-found"),
    probe("create -f -", "created", text=pool("e", "ee")),
    probe("delete rp -l team=ee --timeout=30s", "deleted"),
    probe(
        "delete --raw /apis/rollyard.dev/v1alpha1/namespaces/default/rolloutpools?labelSelector=team%3Dnone",
        r'"items":\[\]',
    ),
    probe(
        "apply --prune -l team=pr --prune-allowlist=rollyard.dev/v1alpha1/RolloutPool -f -",
        "p1 created",
        text=pool("p1", "pr"),
        not_says=(),
    ),
    probe(
        "apply --prune -l team=pr --prune-allowlist=rollyard.dev/v1alpha1/RolloutPool -f -",
        "p2 created",
        "p1 pruned",
        text=pool("p2", "pr"),
        not_says=(),
    ),
    probe("delete events --all", "Rollyard writes and removes events itself", code=1, not_says=()),
    probe("delete ns other", "a namespace exists while", code=1, not_says=()),
    probe("create namespace x", "a namespace exists while", code=1, not_says=()),
    probe("delete -f -", "deleted", text=OTHERS),
    probe("delete rp --all --timeout=30s", "deleted"),
    probe("delete rp --all -n other --timeout=30s", "deleted"),
    probe("get ns other", "NotFound", code=1),
    probe("get rp", "No resources found in default namespace"),
)
