"""The mailbox of a task."""

from __future__ import annotations

import threading

import pytest

from flinkray.streaming.task.task_mailbox import MailboxClosedError, TaskMailbox


def test_mailbox_with_endless_mail_does_not_starve_the_records_of_its_task() -> None:
    """ST-23: a round handles only the mail that was there when the round began."""
    mailbox = TaskMailbox()
    done: list[int] = []

    def again() -> None:
        done.append(len(done))
        mailbox.put(again)

    mailbox.put(again)
    for round_number in range(1, 4):
        assert mailbox.run_pending()
        assert len(done) == round_number


def test_mail_with_priority_is_taken_before_other_mail() -> None:
    """ST-23"""
    mailbox = TaskMailbox()
    order: list[str] = []
    for name in ("first", "second"):
        mailbox.put(lambda name=name: order.append(name))  # type: ignore[misc]
    mailbox.put_first(lambda: order.append("urgent"))
    mailbox.run_pending()
    assert order == ["urgent", "first", "second"]
    assert not mailbox.run_pending()


def test_quiesced_mailbox_refuses_new_mail_but_returns_pending_mail() -> None:
    """ST-23"""
    mailbox = TaskMailbox()
    mailbox.put(lambda: None)
    mailbox.quiesce()
    with pytest.raises(MailboxClosedError, match="quiesced"):
        mailbox.put(lambda: None)
    assert mailbox.try_take() is not None
    assert mailbox.try_take() is None


def test_closing_a_mailbox_returns_pending_mail_and_makes_later_use_fail() -> None:
    """ST-23"""
    mailbox = TaskMailbox()
    mail = [lambda: None, lambda: None]
    for each in mail:
        mailbox.put(each)
    assert mailbox.close() == mail
    for use in (mailbox.try_take, mailbox.take, lambda: mailbox.put(mail[0])):
        with pytest.raises(MailboxClosedError, match="closed"):
            use()


def test_waiting_for_mail_ends_when_another_thread_sends_mail() -> None:
    """ST-23"""
    mailbox = TaskMailbox()
    taken: list[object] = []
    waiter = threading.Thread(target=lambda: taken.append(mailbox.take(timeout=300)))
    waiter.start()

    def mail() -> None:
        return None

    mailbox.put(mail)
    waiter.join(300)
    assert taken == [mail]


def test_waiting_for_mail_fails_when_the_mailbox_is_closed() -> None:
    """ST-23"""
    mailbox = TaskMailbox()
    failures: list[str] = []

    def wait() -> None:
        try:
            mailbox.take(timeout=300)
        except MailboxClosedError as error:
            failures.append(str(error))

    waiter = threading.Thread(target=wait)
    waiter.start()
    mailbox.close()
    waiter.join(300)
    assert failures == ["the mailbox is closed"]
