"""The default text on which encodings are judged."""

TEXT = """\
The tide comes in twice a day because the moon pulls the water of the ocean toward itself. On the side of the earth
that faces the moon the pull is strongest, and the water rises there. On the far side the pull is weakest, and the
water is left behind, so it rises there too. Between these two places the sea is low. As the earth turns, every coast
passes through both of them, and people who live by the sea plan their days by a table of hours.

"How long have you kept the light?" asked the visitor, who had climbed two hundred steps.
"Thirty-one years in March," said the keeper. "My father kept it before me. In those days we burned oil, and somebody
had to wind the clockwork every four hours, all night long."

To make bread for four, mix 500 grams of flour, 10 grams of salt, 7 grams of yeast and 330 grams of warm water. Knead
the dough for ten minutes, cover it, and let it rest for an hour. Shape a loaf, wait until it has doubled in size, and
bake it at 230 degrees for 35 minutes. It is done when the bottom sounds hollow.

def mean(numbers):
    total = 0.0
    for number in numbers:
        total += number
    return total / len(numbers)

In 1869 a chemist in Saint Petersburg wrote the names of the elements on cards and put them in order of their weight.
He saw that their properties came back at regular steps, and he left gaps where no known element would fit. Three of
these gaps were filled within twenty years, by gallium, scandium and germanium, much as he had said.

The committee met on Tuesday to decide whether the old bridge should be repaired or replaced. Repairs would cost about
two million and last for fifteen years; a new bridge would cost nine million and last for eighty. Nobody wanted to
close the road in winter, when the ferry does not run, so they agreed to ask an engineer for a second opinion.

Dear Anna, thank you for the photographs. The garden looks wonderful, and I can hardly believe how tall the apple trees
have become since we planted them. We arrive on Friday at half past six, if the train is on time. Please do not cook
anything special, soup and bread will do. With love, Thomas

SELECT name, COUNT(*) AS orders FROM customers JOIN orders ON customers.id = orders.customer WHERE year = 2019 GROUP BY
name HAVING COUNT(*) > 3 ORDER BY orders DESC;

Question: A tank holds 240 litres. A pump empties it at 16 litres a minute. How long does it take? Answer: 240 divided
by 16 is 15, so it takes fifteen minutes.

Some birds find their way by the stars. Young buntings that were raised in a planetarium learned which point of the sky
does not turn, and flew away from it in autumn, whatever star the scientists had put there.
"""
