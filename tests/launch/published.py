"""What the tools that launchers call take, looked up in the tools themselves."""

def check(words):
    import json
    with open("/tmp/w/seen.jsonl","a") as f: f.write(json.dumps(words)+"\n")
