"""Proofs of join tokens: only the token makes them, for one claim and one nonce."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.device_auth import Claim, Credential, credential_of, is_proof, new_nonce, new_token, stored_key_of
from tuner.errors import InvalidInput

CLAIM = Claim("board-7", "rack", "5eaf", "f1n9e7")


@pytest.fixture
def token() -> str:
    return new_token()[1]


def test_the_one_who_has_the_token_proves_it(token: str) -> None:
    nonce = new_nonce()
    assert is_proof(stored_key_of(token), CLAIM, nonce, credential_of(token).prove(CLAIM, nonce))


def test_a_proof_is_for_its_nonce_its_claim_and_its_token_alone(token: str) -> None:
    nonce = new_nonce()
    proof = credential_of(token).prove(CLAIM, nonce)
    stored = stored_key_of(token)
    assert not is_proof(stored, CLAIM, new_nonce(), proof)
    for name in ("id", "key", "server", "target"):
        assert not is_proof(stored, replace(CLAIM, **{name: "another"}), nonce, proof)
    assert not is_proof(stored_key_of(new_token()[1]), CLAIM, nonce, proof)


def test_fields_cannot_be_moved_into_each_other(token: str) -> None:
    first, second = Claim("a", "b,c", "d", "e"), Claim("a,b", "c", "d", "e")
    nonce = new_nonce()
    assert not is_proof(stored_key_of(token), second, nonce, credential_of(token).prove(first, nonce))


def test_what_the_database_keeps_makes_no_proofs(token: str) -> None:
    nonce = new_nonce()
    stored = bytes.fromhex(stored_key_of(token))
    forged = Credential("dt-0", stored).prove(CLAIM, nonce)
    assert not is_proof(stored.hex(), CLAIM, nonce, forged)


def test_keys_and_proof_are_those_of_rfc_5802(token: str) -> None:
    client_key = hmac.new(token.encode(), b"Client Key", hashlib.sha256).digest()
    stored_key = hashlib.sha256(client_key).digest()
    signature = hmac.new(stored_key, CLAIM.message("00"), hashlib.sha256).digest()
    assert stored_key_of(token) == stored_key.hex()
    assert credential_of(token).prove(CLAIM, "00") == bytes(map(int.__xor__, client_key, signature)).hex()


@given(st.text(max_size=80))
def test_nothing_else_is_a_proof_and_nothing_breaks(text: str) -> None:
    assert not is_proof(hashlib.sha256(b"key").hexdigest(), CLAIM, "00", text)


def test_a_token_names_itself() -> None:
    token_id, text = new_token()
    assert credential_of(text).token_id == token_id
    assert token_id != new_token()[0]


@pytest.mark.parametrize(
    "text", ["", "swd", "swd_", "swd_12_", "sw_abc", "swd__x", "swd_1-2_x", "swd_1_é", "swd_1_" + 300 * "x"]
)
def test_what_is_no_token_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        credential_of(text)
    assert caught.value.field == "token"
    assert len(text) < 6 or text not in str(caught.value)
