"""The prefix cache: a tree of whole KV blocks, found by the tokens they hold."""

import heapq
from collections import Counter

import numpy as np

from scheduler.errors import require
from transport.columns import I32, I64

Parent = int | str
Key = tuple[Parent, bytes]


class PrefixTree:
    """Nodes are block ids. A node's key is its parent and the bytes of its own tokens; a node at the top has the salt (a str) for a parent.

    Looking a key up compares the tokens themselves, so two prefixes are never taken for each other. Who uses a node is known to the ledger:
    `refs` [blocks] is its count of users, read here and never written. A node is used only together with all nodes above it.

    Last use is when the last user let go: every `release` is one tick of a clock and stamps all its nodes. `evict` takes the leaf without
    users whose stamp is oldest; its parent may be the next leaf. No two leaves without users have the same stamp: a tick stamps one path.

    `branches`: by node at the top, the number of nodes from there down.
    """

    def __init__(self, refs: I32, block_size: int) -> None:
        self._refs = refs
        self._bytes = 4 * block_size
        self._node_of: dict[Key, int] = {}
        self._key_of: dict[int, Key] = {}
        self._children = [0] * refs.size
        self._top = [0] * refs.size
        self.branches: dict[int, int] = {}
        self._stamp: I64 = np.zeros(refs.size, dtype=np.int64)
        self._clock = 0
        self._leaves: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._key_of)

    def __contains__(self, block: int) -> bool:
        return block in self._key_of

    def match(self, salt: str, tokens: bytes, most: int) -> list[int]:
        """The longest path whose tokens begin `tokens` (i32 column): at most `most` blocks, from the top."""
        path: list[int] = []
        parent: Parent = salt
        for start in range(0, most * self._bytes, self._bytes):
            node = self._node_of.get((parent, tokens[start : start + self._bytes]))
            if node is None:
                break
            path.append(node)
            parent = node
        return path

    def enter(self, parent: Parent, tokens: bytes, block: int) -> int:
        """Make `block` the child of `parent` that holds `tokens`; gives the node that is there: `block`, or one that came first."""
        key = (parent, tokens)
        node = self._node_of.setdefault(key, block)
        if node == block:
            self._key_of[block] = key
            top = block
            if isinstance(parent, int):
                self._children[parent] += 1
                top = self._top[parent]
            self._top[block] = top
            self.branches[top] = self.branches.get(top, 0) + 1
        return node

    def release(self, path: I32, last: int | None) -> None:
        """A user lets go of `path` (node ids, any order; others are harmless), whose deepest node is `last`. `refs` is already lowered."""
        self._clock += 1
        self._stamp[path] = self._clock
        if last is not None:
            self.offer(last)

    def offer(self, node: int) -> None:
        """Let `node` be found by `evict` if it is a leaf without users."""
        if not self._refs[node] and not self._children[node]:
            heapq.heappush(self._leaves, (int(self._stamp[node]), node))
            if len(self._leaves) > 2 * len(self) + 64:
                self._leaves = [(int(self._stamp[node]), node) for node in self._key_of if not self._refs[node] and not self._children[node]]
                heapq.heapify(self._leaves)

    def evict(self, most: int) -> list[int]:
        """Take out at most `most` blocks, longest unused first, leaves before their parents."""
        evicted: list[int] = []
        leaves = self._leaves
        while leaves and len(evicted) < most:
            stamp, node = heapq.heappop(leaves)
            if node not in self._key_of or self._refs[node] or self._children[node] or self._stamp[node] != stamp:
                continue  # used, or offered again, since
            self._evict_path(node, evicted, most)
        return evicted

    def _evict_path(self, node: int, evicted: list[int], most: int) -> None:
        """Take out a leaf, then the nodes above it as long as they are the leaves longest unused."""
        while True:
            evicted.append(node)
            parent = self._remove(node)
            if not isinstance(parent, int) or self._refs[parent] or self._children[parent]:
                return
            leaf = (int(self._stamp[parent]), parent)
            if len(evicted) == most or (self._leaves and self._leaves[0] < leaf):
                heapq.heappush(self._leaves, leaf)
                return
            node = parent

    def _remove(self, node: int) -> Parent:
        key = self._key_of.pop(node)
        del self._node_of[key]
        if isinstance(key[0], int):
            self._children[key[0]] -= 1
            self.branches[self._top[node]] -= 1
        else:
            del self.branches[node]
        return key[0]

    def forget(self, node: int) -> list[int]:
        """Take out the whole branch from its top node down to everything below it, whoever uses it; gives its nodes."""
        node = self._top[node]
        below: dict[Parent, list[int]] = {}
        for block, (above, _) in self._key_of.items():
            below.setdefault(above, []).append(block)
        branch = [node]
        for block in branch:
            branch += below.get(block, [])
        for block in reversed(branch):
            self._remove(block)
        return branch

    def check(self) -> None:
        """Raises InvariantError when the tree is not one."""
        children = [0] * len(self._children)
        for parent, _ in self._key_of.values():
            if isinstance(parent, int):
                children[parent] += 1
        offered = set(self._leaves)
        parents = {node: key[0] for node, key in self._key_of.items() if isinstance(key[0], int)}
        facts = {
            "a node and its key do not agree": {key: node for node, key in self._key_of.items()} == self._node_of,
            "a node's parent is not in the tree": all(parent in self for parent in parents.values()),
            "a node has more users than its parent": all(self._refs[node] <= self._refs[parent] for node, parent in parents.items()),
            "children do not add up": children == self._children,
            "branches do not add up": self.branches == Counter(self._top[node] for node in self._key_of),
            "a node is in another branch than its parent": all(self._top[node] == self._top[parents.get(node, node)] for node in self._key_of),
            "an unused leaf cannot be found": all(
                (int(self._stamp[node]), node) in offered for node in self._key_of if not self._refs[node] and not children[node]
            ),
        }
        require(facts)
