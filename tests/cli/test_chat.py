"""`nibble run` on a terminal: conversation, commands, Ctrl-C."""
import support
from support import MODEL, Terminal

SUM = "Calculate 52 + 78."


class Chat(support.Test):
    def start(self, *arguments):
        terminal = Terminal("run", MODEL, "--temperature", "0", "--reasoning", "low", *arguments)
        terminal.expect(">>> ")
        return terminal

    def leave(self, terminal):
        terminal.send("\x04")
        self.assertEqual(terminal.exit_code(), 0)

    def test_answers_and_remembers(self):
        terminal = self.start()
        terminal.send(SUM + "\n")
        answer = terminal.expect(">>> ")
        self.assertIn("\x1b[2m", answer)  # reasoning is dim
        self.assertIn("130", answer)
        self.assertIn("tok/s", answer)
        first_prompt = int(answer.split("prompt: ")[1].split()[0])
        terminal.send(SUM + "\n")
        second_prompt = int(terminal.expect(">>> ").split("prompt: ")[1].split()[0])
        self.assertGreater(second_prompt, first_prompt + 10)  # question and answer are part of it
        terminal.send("/reset\n")
        terminal.expect(">>> ")
        terminal.send(SUM + "\n")
        self.assertEqual(int(terminal.expect(">>> ").split("prompt: ")[1].split()[0]), first_prompt)
        self.leave(terminal)

    def test_commands(self):
        terminal = self.start("--hide-reasoning")
        terminal.send("/help\n")
        self.assertIn("/reset", terminal.expect(">>> "))
        terminal.send("/nonsense\n")
        self.assertIn("unknown command", terminal.expect(">>> "))
        terminal.send("/reasoning loud\n")
        self.assertIn("low, medium or high", terminal.expect(">>> "))
        terminal.send("/system You are a helpful assistant.\n")
        terminal.expect(">>> ")
        terminal.send("Calculate \\\n52 + 78.\n")
        self.assertNotIn("\x1b[2m", terminal.expect(">>> "))
        terminal.send("/exit\n")
        self.assertEqual(terminal.exit_code(), 0)

    def test_interrupt_stops_the_answer_only(self):
        terminal = Terminal("run", MODEL, "--raw", "--temperature", "1", "--seed", "1", "--stop", "no such text")
        terminal.expect(">>> ")
        terminal.send("Once upon a time there was\n")
        terminal.expect("\n")
        terminal.expect(" ", timeout=60)
        terminal.send("\x03")
        self.assertIn("(stopped)", terminal.expect(">>> "))
        terminal.send("\x03")
        terminal.expect("leaves)")
        terminal.send("\x03")
        self.assertEqual(terminal.exit_code(), 0)

    def test_a_conversation_outgrows_its_context(self):
        terminal = self.start("--context", "128")
        terminal.send(SUM + "\n")
        terminal.expect(">>> ")
        terminal.send("word " * 100 + "\n")
        self.assertIn("/reset begins another", terminal.expect(">>> "))
        self.leave(terminal)


if __name__ == "__main__":
    support.main()
