"""Certificates and kubeconfigs of one lab: an authority, and a key for each component (EC P-256, one year)."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ci.lab.processes import command
from ci.lab.settings import Settings

CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "365")
AUTHORITY = ("basicConstraints = critical, CA:TRUE", "keyUsage = critical, keyCertSign, cRLSign, digitalSignature")
MEMBER = (
    "basicConstraints = critical, CA:FALSE",
    "keyUsage = critical, digitalSignature",
    "extendedKeyUsage = clientAuth, serverAuth",
)


def make(lab: Settings) -> None:
    """Everything in lab.pki, and the administrator's kubeconfig."""
    lab.pki.mkdir(mode=0o700, parents=True)
    for authority in ("ca", "front-proxy-ca"):
        certificate(lab.pki, authority, f"/CN={authority}", None)
    command("openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", lab.pki / "sa.key")
    command("openssl", "pkey", "-in", lab.pki / "sa.key", "-pubout", "-out", lab.pki / "sa.pub")
    server_names = ["localhost", "127.0.0.1", lab.api_ip, lab.kubernetes_ip, *_suffixes("kubernetes.default.svc")]
    nodes = [lab.node(n) for n in lab.numbers]
    clients = {
        "admin": "/O=system:masters/CN=admin",
        "controllers": "/CN=system:kube-controller-manager",
        "scheduler": "/CN=system:kube-scheduler",
        "proxy": "/CN=system:kube-proxy",
        "netpol": "/CN=kube-netpol",
        **{node: f"/O=system:nodes/CN=system:node:{node}" for node in nodes},
    }
    with ThreadPoolExecutor(4) as pool:
        jobs = [
            pool.submit(certificate, lab.pki, "apiserver", "/CN=kube-apiserver", "ca", server_names),
            pool.submit(certificate, lab.pki, "front-proxy", "/CN=front-proxy-client", "front-proxy-ca"),
            pool.submit(certificate, lab.pki, "apiserver-kubelet", "/O=system:masters/CN=apiserver-kubelet", "ca"),
        ]
        for name, subject in clients.items():
            own = [name, lab.node_ip(nodes.index(name) + 1)] if name in nodes else []
            jobs.append(pool.submit(certificate, lab.pki, name, subject, "ca", own))
        for job in jobs:
            job.result()
    for name in clients:
        kubeconfig(lab, name, lab.kubeconfig if name == "admin" else lab.pki / f"{name}.kubeconfig")


def certificate(pki: Path, name: str, subject: str, authority: str | None, names: list[str] | None = None) -> None:
    """name.key and name.crt in pki, signed by the authority (by itself where there is none), valid for the names."""
    extensions = list(AUTHORITY if authority is None else MEMBER)
    if names:
        extensions.append("subjectAltName = " + ",".join(("IP:" if n[0].isdigit() else "DNS:") + n for n in names))
    config = pki / f"{name}.cnf"
    config.write_text(
        "[req]\ndistinguished_name = dn\nx509_extensions = ext\n[dn]\n[ext]\n" + "\n".join(extensions) + "\n"
    )
    signer: list[str | Path] = []
    if authority:
        signer = ["-CA", pki / f"{authority}.crt", "-CAkey", pki / f"{authority}.key"]
    out = ("-keyout", pki / f"{name}.key", "-out", pki / f"{name}.crt")
    command("openssl", "req", "-x509", "-config", config, *CURVE, "-subj", subject, *signer, *out)


def kubeconfig(lab: Settings, name: str, path: Path) -> None:
    """A kubeconfig (JSON is YAML) of the client whose key is name.key."""
    user = {"client-certificate": str(lab.pki / f"{name}.crt"), "client-key": str(lab.pki / f"{name}.key")}
    path.touch(mode=0o600)
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": lab.name,
                "clusters": [
                    {
                        "name": lab.name,
                        "cluster": {"server": lab.api, "certificate-authority": str(lab.pki / "ca.crt")},
                    }
                ],
                "users": [{"name": name, "user": user}],
                "contexts": [{"name": lab.name, "context": {"cluster": lab.name, "user": name}}],
            },
            indent=1,
        )
    )


def _suffixes(name: str) -> list[str]:
    """kubernetes.default.svc -> kubernetes, kubernetes.default, kubernetes.default.svc and the full name."""
    parts = name.split(".")
    return [".".join(parts[: n + 1]) for n in range(len(parts))] + [f"{name}.cluster.local"]
