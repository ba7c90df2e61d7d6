#!/usr/bin/env python3
"""Reads a checkpoint directory of mend by docs/format.md alone: read_checkpoint.py DIR [--verify]
Lists manifests, bases, shards and segments; --verify also hashes the shards (some 1 MB/s)."""
import json, struct, sys
from pathlib import Path

A, B, M = 0x9e3779b97f4a7c15, 0xbb67ae8584caa73b, (1 << 64) - 1
def key(x):
    for left in 40, 24:
        p = (x & 0xffffffff) * (x >> 32)
        x ^= (p << left | p >> 64 - left) & M
    return x
def mix(x):
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 & M
    x = (x ^ x >> 27) * 0x94d049bb133111eb & M
    return x ^ x >> 31
def hash128(data, seed=0):
    def total(step, start):
        words = struct.iter_unpack('<Q', data + bytes(-len(data) % 8))
        pairs = ((w, key(i * step + start & M)) for i, (w,) in enumerate(words))
        return sum((w + k & M >> 32) * ((w >> 32) + (k >> 32) & M >> 32) for w, k in pairs) & M
    x = total(A, 0x243f6a8885a308d3) ^ mix(len(data) + A & M)
    y = total(B, 0x13198a2e03707344) ^ mix(seed + B & M)
    x = mix(x + y & M); y = mix(y + x & M); x = mix(x + y & M)
    return x, y + x & M  # lo, hi
def hex128(data): return '%016x%016x' % hash128(data)[::-1]

def manifest(text):
    m = json.loads(text)
    if (m['format'], m['version']) != ('mend manifest', 1): raise ValueError('another format')
    # The checksum counts the text with zeros in its own place.
    if m['checksum'] != hex128(text[:-36] + b'0' * 32 + text[-4:]): raise ValueError('checksum')
    return m

def records(data, name):
    """How many are whole, and where the last of them ends."""
    seed, end, count = hash128(name.encode())[0], 0, 0
    while end + 40 <= len(data):
        magic, length, place, *checksum = struct.unpack_from('<8s4Q', data, end)
        whole = data[end:end + 24] + data[end + 40:end + 40 + length]
        if (magic, place, 24 + length) != (b'mendrec1', count, len(whole)): break
        if hash128(whole, seed) != tuple(checksum): break
        end, count = end + 40 + length, count + 1
    return f'{count} records, whole to byte {end} of {len(data)}'

def main(directory, verify=None):
    damaged = 0
    for path in sorted(Path(directory, 'manifests').glob('*.json'), reverse=True):
        try: m = manifest(path.read_bytes())
        except (ValueError, KeyError) as why: m = {'kind': f'DAMAGED ({why})', 'bases': []}
        damaged += 'checksum' not in m
        print(path.name, m['kind'], *(f"step {b['step']}" for b in m['bases']))
        for shard in (shard for base in m['bases'] for shard in base['shards']):
            file = Path(directory, shard['name'])
            good = file.is_file() and file.stat().st_size == shard['length']
            if good and verify: good = hex128(file.read_bytes()) == shard['hash']
            damaged += not good
            print(f"  {shard['name']}: {shard['length']} bytes, {'ok' if good else 'DAMAGED'}")
    for path in sorted(Path(directory, 'differentials').glob('*')):
        print(path.name, records(path.read_bytes(), path.name))
    return damaged != 0

if __name__ == '__main__': sys.exit(main(*sys.argv[1:3]) if sys.argv[1:] else __doc__)
