"""Searches captured output for credentials, plain, in base64, in hexadecimal and percent-encoded."""

import base64
import glob
import sys
import urllib.parse

PLANTED = "planted-credential-of-the-search"


def forms(credential):
    """Returns the forms in which a credential could appear."""
    data = credential.encode()
    encoded = {base64.b64encode(data).rstrip(b"="), base64.urlsafe_b64encode(data).rstrip(b"=")}
    return {data, data.hex().encode(), urllib.parse.quote(credential, safe="").encode()} | encoded


def main():
    folder = sys.argv[1]
    credentials = {PLANTED}
    for path in glob.glob(f"{folder}/credentials-*"):
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            credentials |= set(file.read().split("\n")) - {""}
    outputs, searched = [f"log line: {PLANTED}".encode()], 0
    for path in glob.glob(f"{folder}/output-*"):
        with open(path, "rb") as file:
            outputs.append(file.read())
    searched = sum(map(len, outputs))
    found = {credential: sum(output.count(form) for output in outputs for form in forms(credential))
             for credential in credentials}
    planted = found.pop(PLANTED)
    print(f"{len(credentials) - 1} credentials, {searched:,} bytes of output; the planted one was found {planted} times.")
    leaks = {credential: count for credential, count in sorted(found.items()) if count}
    for credential, count in leaks.items():
        print(f"{count} occurrences of {credential}")
        form = next(form for form in sorted(forms(credential)) for output in outputs if form in output)
        output = next(output for output in outputs if form in output)
        at = output.index(form)
        print(f"  as in {output[max(0, at - 200):at + 100]!r}")
    print(f"{sum(leaks.values())} occurrences in all.")
    sys.exit(1 if leaks or planted != 1 else 0)


if __name__ == "__main__":
    main()
