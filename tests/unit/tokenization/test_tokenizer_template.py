"""Chat templates: their variables, and the operations that are forbidden."""

from __future__ import annotations

import time
from typing import Any

import pytest
from inline_templates import inline_template

from headrace.errors import ConfigError, InvalidRequest
from headrace.tokenization.chat_inputs import ChatInputs

USER = [{"role": "user", "content": "hi"}]
CHATML = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] | trim + '<end>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
TOOLS = (
    "{%- for m in messages %}[{{ m.role }}]{{ m.content }}"
    "{%- for call in m.tool_calls or [] %}"
    "<{{ call.function.name }} {{ call.function.arguments | tojson }}>{%- endfor %}"
    "{%- endfor %}"
)


def render(source: str, messages: Any = USER, **options: Any) -> str:
    return inline_template({"default": source}, {"bos_token": "<s>"}).render(ChatInputs(messages, **options))


class TestWhatTemplatesSee:
    def test_messages_and_the_generation_prompt(self) -> None:
        assert render(CHATML) == "<|user|>hi<end>\n<|assistant|>"
        assert render(CHATML, add_generation_prompt=False) == "<|user|>hi<end>\n"

    @pytest.mark.parametrize(
        ("source", "text"),
        [
            ("{{ bos_token }}{{ tools }}{{ documents }}", "<s>NoneNone"),
            (
                "{% for x in [1, 2, 3, 4] %}{% if x == 2 %}{% continue %}{% elif x == 4 %}{% break %}{% endif %}"
                "{{ x }}{% endfor %}",
                "13",
            ),
            ("{% generation %}{{ messages[0].content }}{% endgeneration %}!", "hi!"),
            ("{{ {'a': '<é>', 'b': [1, none]} | tojson }}", '{"a": "<é>", "b": [1, null]}'),
            ("{{ {'b': 1} | tojson(indent=2) }}", '{\n  "b": 1\n}'),
            ("{{ messages | length }}{{ loop is defined }}", "1False"),
            (
                "{% for m in messages %}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{% endfor %}",
                "0TrueTrue1",
            ),
            ("{% for x in 'abc' %}{{ loop.previtem }}{{ loop.nextitem }}{% endfor %}", "bac" + "b"),
            (
                "{% set ns = namespace(n=0) %}{% for i in range(5) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
                "10",
            ),
            ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('a') ~ m(1) ~ 2 }}", "<a><1>2"),
            ("{% set t %}a{{ 1 }}b{% endset %}{{ t | upper }}", "A1B"),
            ("{% for a, b in {'x': 1, 'y': 2}.items() %}{{ a }}{{ b }}{% endfor %}", "x1y2"),
            ("{{ 'a-b-c'.split('-') | join('+') }}{{ [1, 2] | join }}", "a+b+c12"),
            (
                "{{ messages | map(attribute='role') | join(',') }}{{ messages | join('x', attribute='role') }}",
                "useruser",
            ),
            ("{{ 'x\ny' | indent(2) }}|{{ 'x\ny' | indent(1, true) }}", "x\n  y| x\n y"),
            ("{{ '%s-%02d' % ('a', 7) }}{{ '{:>4}|{}'.format('b', 2024) }}", "a-07   b|2024"),
            ("{{ '2024 100000%' }}{{ '%d in 2024' % 3 }}", "2024 100000%3 in 2024"),
            ("{{ 'aXbX'.replace('X', '--') }}{{ 'aX' | replace('X', '') }}", "a--b--a"),
            ("{{ 2 ** 10 }}{{ 'ab' * 3 }}{{ ([1] + [2]) | length }}{{ 7 % 4 }}{{ 1.5 * 2 }}", "1024ababab233.0"),
            ("{{ messages[1:] }}{{ messages[0].content[::-1] }}", "[]ih"),
            ("{{ undefined_thing is defined }}{{ undefined_thing }}", "False"),
            ("  {% if true %}\n  x\n  {% endif %}\n", "  x\n"),
            (
                "{% for x in [[1, [2]], [3]] recursive %}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}"
                "{% endif %}{% endfor %}",
                "(1(2))(3)",
            ),
        ],
    )  # fmt: skip
    def test_the_language_that_templates_are_written_in(self, source: str, text: str) -> None:
        assert render(source) == text

    def test_the_day(self) -> None:
        assert render("{{ strftime_now('%Y') }}") == time.strftime("%Y")

    def test_kwargs_are_variables(self) -> None:
        assert render("{{ thinking }}", kwargs={"thinking": False}) == "False"

    @pytest.mark.parametrize(
        "name",
        (
            "messages tools documents tokenize add_generation_prompt chat_template bos_token eos_token "
            "raise_exception".split()
        ),
    )
    def test_kwargs_override_nothing(self, name: str) -> None:
        with pytest.raises(InvalidRequest, match=name) as caught:
            render(CHATML, kwargs={name: "x"})
        assert caught.value.param == f"chat_template_kwargs.{name}"

    def test_the_tool_template_is_used_with_tools(self) -> None:
        template = inline_template({"default": "plain", "tool_use": "{{ tools[0].name }}"}, {})
        assert template.render(ChatInputs(USER)) == "plain"
        assert template.render(ChatInputs(USER, tools=[{"name": "f"}])) == "f"
        assert template.render(ChatInputs(USER, tools=[])) == "plain"

    def test_the_caller_keeps_its_messages(self) -> None:
        messages = [
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": ""}}]}
        ]
        render(TOOLS, messages)
        assert messages[0]["content"] is None
        assert messages[0]["tool_calls"][0]["function"]["arguments"] == ""


class TestMessages:
    def test_tool_calls_and_parts_both_appear(self) -> None:
        call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
        messages = [
            *USER,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {
                "role": "tool",
                "tool_call_id": "1",
                "content": [{"type": "text", "text": "3"}, {"type": "text", "text": "4"}],
            },
        ]
        assert render(TOOLS, messages) == '[user]hi[assistant]<add {"a": 1}>[tool]3\n4'

    @pytest.mark.parametrize("arguments", ["", "  ", None, "{}", {}])
    def test_no_arguments_are_an_empty_object(self, arguments: object) -> None:
        call = {"function": {"name": "f", "arguments": arguments}}
        assert render(TOOLS, [{"role": "assistant", "content": "x", "tool_calls": [call]}]) == "[assistant]x<f {}>"

    def test_no_calls_are_left_out(self) -> None:
        source = "{{ 'tool_calls' in messages[0] }}{{ 'name' in messages[0] }}"
        assert render(source, [{"role": "assistant", "content": "x", "tool_calls": [], "name": None}]) == "FalseFalse"

    @pytest.mark.parametrize("content", ["", [], None])
    def test_an_assistant_message_may_be_empty(self, content: object) -> None:
        assert render(TOOLS, [{"role": "assistant", "content": content}]) == "[assistant]"

    def test_an_empty_list_of_parts_is_an_empty_text(self) -> None:
        assert render(TOOLS, [{"role": "user", "content": []}]) == "[user]"

    @pytest.mark.parametrize(
        ("message", "param"),
        [
            ({"content": "x"}, "messages[0].role"),
            ({"role": "user"}, "messages[0].content"),
            ({"role": "user", "content": 3}, "messages[0].content"),
            ({"role": "user", "content": [7]}, "messages[0].content[0]"),
            ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content[0]"),
            ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
            ({"role": "assistant", "tool_calls": "x"}, "messages[0].tool_calls"),
            ({"role": "assistant", "tool_calls": [{}]}, "messages[0].tool_calls[0].function"),
            (
                {"role": "assistant", "tool_calls": [{"function": {"name": ""}}]},
                "messages[0].tool_calls[0].function.name",
            ),
            *(
                (
                    {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]},
                    "messages[0].tool_calls[0].function.arguments",
                )
                for arguments in ("{", "[1]", "3", 7, "[" * 100_000)
            ),
        ],
    )
    def test_invalid_fields_are_named(self, message: dict[str, object], param: str) -> None:
        with pytest.raises(InvalidRequest) as caught:
            render(TOOLS, [message])
        assert caught.value.param == param

    def test_no_messages(self) -> None:
        with pytest.raises(InvalidRequest, match="at least one"):
            render(TOOLS, [])

    def test_text_becomes_a_part_for_templates_that_loop_over_parts(self) -> None:
        source = (
            "{% for m in messages %}{% for p in m.content %}"
            "{% if p.type == 'text' %}[{{ p.text }}]{% endif %}{% endfor %}{% endfor %}"
        )
        assert render(source) == "[hi]"
        assert render(source, [*USER, {"role": "assistant", "content": "a"}]) == "[hi][a]"
        talk = [
            *USER,
            {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b "}]},
        ]
        options = {"add_generation_prompt": False, "continue_final_message": True}
        assert render(source, talk, **options) == "[hi][a][b "

    @pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
    def test_reasoning_has_every_name(self, name: str) -> None:
        source = "{{ messages[-1].reasoning_content }}{{ messages[-1].thinking }}"
        assert render(source, [{"role": "assistant", "content": "x", name: "hm"}]) == "hmhm"


class TestContinue:
    @pytest.mark.parametrize("text", ["The answer is ", "", "  led", "a\n\n", "<think>x</think>", "<end>"])
    def test_the_final_text_is_unchanged_and_not_closed(self, text: str) -> None:
        messages = [*USER, {"role": "assistant", "content": text}]
        rendered = render(CHATML, messages, add_generation_prompt=False, continue_final_message=True)
        assert rendered == "<|user|>hi<end>\n<|assistant|>" + text

    def test_parts_are_continued_too(self) -> None:
        messages = [*USER, {"role": "assistant", "content": [{"type": "text", "text": "a "}]}]
        assert render(CHATML, messages, add_generation_prompt=False, continue_final_message=True).endswith(
            "<|assistant|>a "
        )

    @pytest.mark.parametrize("messages", [USER, [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]])
    def test_only_an_assistants_text_can_be_continued(self, messages: list[dict[str, object]]) -> None:
        with pytest.raises(InvalidRequest, match="assistant's message") as caught:
            render(CHATML, messages, add_generation_prompt=False, continue_final_message=True)
        assert caught.value.param == "continue_final_message"

    def test_it_excludes_the_generation_prompt(self) -> None:
        with pytest.raises(InvalidRequest, match="exclude each other"):
            render(CHATML, [{"role": "assistant", "content": "x"}], continue_final_message=True)

    def test_a_template_that_drops_the_message_is_an_error(self) -> None:
        with pytest.raises(InvalidRequest, match="does not show"):
            render(
                "x", [{"role": "assistant", "content": "x"}], add_generation_prompt=False, continue_final_message=True
            )


def attack(source: str) -> str:
    """The error of a hostile template."""
    with pytest.raises(InvalidRequest) as caught:
        render(source)
    assert "Traceback" not in str(caught.value)
    return str(caught.value)


class TestSandbox:
    @pytest.mark.parametrize(
        "source",
        [
            "{{ raise_exception.__globals__ }}",
            "{{ strftime_now.__globals__['os'] }}",
            "{{ ''.__class__.__mro__ }}",
            "{{ messages.__class__ }}",
            "{{ '' | attr('__class__') }}",
            "{{ ('' | attr)('__class__') }}",
            "{{ ''['__class__'] }}",
            "{{ '{0.__class__}'.format(1) }}",
            "{{ cycler.__init__.__globals__.os.popen('id') }}",
            "{{ self.__init__.__globals__ }}",
            "{{ joiner.__init__.__globals__ }}",
            "{{ messages | map('attr', '__class__') | list }}",
            "{{ messages | map(attribute='__class__') | list }}",
            "{{ messages.append(1) }}",
            "{{ messages[0].update({'a': 1}) }}",
            "{{ '{0.__class__}'.format_map({'0': 1}) }}",
            "{{ lipsum() }}",
            "{% include '/etc/passwd' %}",
            "{% import 'os' as os %}",
            "{{ (messages[0].items)() .__iter__ }}",
        ],
    )
    def test_a_template_cannot_access_python(self, source: str) -> None:
        attack(source)

    def test_the_error_names_the_unsafe_attribute(self) -> None:
        assert "__globals__" in attack("{{ raise_exception.__globals__ }}")
        assert "unsafe" in attack("{{ strftime_now.__globals__ }}")

    def test_a_refusal_of_the_template_is_an_invalid_request(self) -> None:
        with pytest.raises(InvalidRequest, match="refuses these messages: roles must alternate"):
            render("{{ raise_exception('roles must alternate') }}")

    @pytest.mark.parametrize(
        "source",
        ["{{ nothing.of.this }}", "{{ messages[0].content + 1 }}", "{{ 1 // 0 }}", "{{ [] | first | tojson }}"],
    )
    def test_faults_of_a_template_are_one_line(self, source: str) -> None:
        assert "\n" not in attack(source)

    def test_wrong_syntax_has_its_line(self) -> None:
        assert "line 2" in attack("x\n{% if %}")
        with pytest.raises(ConfigError, match="line 1"):
            inline_template({"default": "{% nope %}"}, {}).check()

    def test_without_a_default_template_the_error_lists_the_names(self) -> None:
        with pytest.raises(InvalidRequest, match="named rag"):
            inline_template({"rag": "x"}, {}).render(ChatInputs(USER))
