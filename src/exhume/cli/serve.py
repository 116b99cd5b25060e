"""`exhume export` and `exhume serve`: a trained split defence as it is deployed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from exhume.cli.frame import app, tell, with_exit_codes


@app.command()
@with_exit_codes
def export(
    run: Annotated[Path, typer.Argument(help="A run of exhume audit-split with --defend.")],
    client: Annotated[Path, typer.Option(help="New folder: head, noise, selector and tail.")],
    server: Annotated[
        Path | None, typer.Option(help="New folder: bodies, for MLServer. Not needed again later.")
    ] = None,
    onnx: Annotated[
        Path | None, typer.Option(help="New folder: the bodies as ONNX, for Triton.")
    ] = None,
) -> None:
    """Write a trained defence as a client's folder and a server's. Only the client's has the selector."""
    from exhume.core.contract import ExhumeError
    from exhume.integrations.exporting import export_run

    if onnx is not None and server is None:
        raise ExhumeError("--onnx: give --server too; the bodies are taken from there")
    factory = export_run(run, client, server)
    tell(f"client: {client} (keep it to yourself)")
    if server is not None:
        tell(f"server: {server}")
    if onnx is not None and server is not None:
        from exhume.integrations.onnx_parts import export_onnx

        export_onnx(server, onnx, factory=factory)
        tell(f"onnx: {onnx}")


@app.command()
@with_exit_codes
def serve(
    server: Annotated[Path, typer.Argument(help="A server's folder written by exhume export.")],
    only: Annotated[str | None, typer.Option(help="Which bodies: 0-4 or 0,2,5.")] = None,
    port: Annotated[
        int, typer.Option(help="Port of REST; gRPC takes the next one, metrics the one after.")
    ] = 8080,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    token_file: Annotated[
        Path | None,
        typer.Option(
            help="A file, readable by you alone, with the bearer token clients must send."
        ),
    ] = None,
    certificate: Annotated[Path | None, typer.Option(help="TLS certificate, PEM.")] = None,
    private_key: Annotated[
        Path | None, typer.Option(help="Private key of the certificate, readable by you alone.")
    ] = None,
    max_megabytes: Annotated[float, typer.Option(help="Size of the largest message.")] = 16.0,
    at_once: Annotated[int, typer.Option(help="Requests served at once; more are refused.")] = 64,
    seconds: Annotated[
        float, typer.Option(help="Time a client has to send a whole message.")
    ] = 10.0,
    threads: Annotated[int, typer.Option(help="Processor threads for each request.")] = 1,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Listen beyond this machine without token or TLS.")
    ] = False,
) -> None:
    """Serve bodies with MLServer until stopped. Needs the extra `serve`."""
    from exhume.core.notation import rows_in
    from exhume.integrations.hosting import Hosting
    from exhume.integrations.hosting import host as run
    from exhume.integrations.serve_limits import Limits

    limits = Limits(_token(token_file), int(max_megabytes * 2**20), at_once, seconds)
    hosting = Hosting(port, host, limits, certificate, private_key, threads, insecure)
    run(
        server,
        hosting,
        only=None if only is None else tuple(rows_in(only, "--only", what="bodies")),
    )


def _token(path: Path | None) -> str:
    from exhume.core.contract import ExhumeError
    from exhume.integrations.serve_limits import private_bytes

    if path is None:
        return ""
    token = private_bytes(path, "--token-file").decode("utf-8", "replace").strip()
    if len(token) < 16 or not token.isascii() or not token.isprintable():
        raise ExhumeError(f"--token-file: {path} must hold 16 or more printable characters")
    return token
