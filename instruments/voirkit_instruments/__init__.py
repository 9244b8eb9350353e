"""The instruments that come with voirkit, each in a folder of its own; voirkit finds them by this
package's entry points."""
